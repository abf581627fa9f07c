from loader.tallies import *
