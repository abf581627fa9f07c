from loader.reporting.order import *
