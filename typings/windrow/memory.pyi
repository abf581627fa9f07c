from loader.memory import *
