from loader.workers import *
