from sources.remote.pace import *
