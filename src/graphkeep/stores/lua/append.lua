-- Writes commits that neither ask, close nor pause: nearly all of them, and nothing else is loaded
-- for them. See commit.lua.
return commit_all()
