from sources.remote.fetcher import *
