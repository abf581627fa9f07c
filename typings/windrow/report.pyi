from loader.report import *
