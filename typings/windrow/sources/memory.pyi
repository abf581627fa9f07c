from sources.memory import *
