from loader.reporting.plan import *
