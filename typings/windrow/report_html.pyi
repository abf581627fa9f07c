from loader.report_html import *
