from loader.sending import *
