from sources.remote.disk_cache import *
