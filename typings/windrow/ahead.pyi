from loader.ahead import *
