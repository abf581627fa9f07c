from loader.lengths_beam import *
