from loader.report_page import *
