from loader.reporting.page import *
