from sources.mapped import *
