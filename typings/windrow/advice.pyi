from loader.advice import *
