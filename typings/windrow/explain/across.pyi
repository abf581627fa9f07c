from loader.explain.across import *
