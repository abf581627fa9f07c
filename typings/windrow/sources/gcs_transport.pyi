from sources.gcs_transport import *
