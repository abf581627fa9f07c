from sources.remote.coming_reads import *
