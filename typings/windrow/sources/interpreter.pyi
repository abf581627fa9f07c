from sources.interpreter import *
