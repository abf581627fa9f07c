from loader.report_charts import *
