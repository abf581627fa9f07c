from sources.cf import *
