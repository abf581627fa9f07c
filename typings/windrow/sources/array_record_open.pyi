from sources.array_record_open import *
