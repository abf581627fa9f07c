from loader.verification import *
