from loader.reporting.values import *
