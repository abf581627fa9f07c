from loader.place_verification import *
