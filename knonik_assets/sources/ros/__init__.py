"""ROS recordings: their containers, their types, and how topics become the streams of an episode."""
