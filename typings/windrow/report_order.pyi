from loader.report_order import *
