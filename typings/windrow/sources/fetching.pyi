from sources.fetching import *
