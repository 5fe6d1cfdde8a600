"""The processes of a validation: how they start, meet, agree, and notice a lost one."""
