from loader.reporting.charts import *
