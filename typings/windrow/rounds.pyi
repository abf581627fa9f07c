from loader.rounds import *
