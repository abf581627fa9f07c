from loader.crew import *
