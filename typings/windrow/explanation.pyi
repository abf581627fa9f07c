from loader.explanation import *
