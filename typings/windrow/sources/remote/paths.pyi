from sources.remote.paths import *
