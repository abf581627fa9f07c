from sources.remote.cache_folder import *
