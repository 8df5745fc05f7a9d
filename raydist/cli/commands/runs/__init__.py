"""Commands about runs that are kept on a storage: they read it, wait for it, copy from it, delete."""
