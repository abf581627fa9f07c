from loader.explain.advice import *
