from sources.attempts import *
