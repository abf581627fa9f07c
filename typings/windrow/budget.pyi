from loader.budget import *
