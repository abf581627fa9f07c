from sources.remote.request_counts import *
