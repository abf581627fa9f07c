from sources.remote.attempts import *
