from sources.halts import *
