from sources.base import *
