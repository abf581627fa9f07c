from loader.explain.dry_run import *
