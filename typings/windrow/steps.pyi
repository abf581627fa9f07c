from loader.steps import *
