from sources.signatures import *
