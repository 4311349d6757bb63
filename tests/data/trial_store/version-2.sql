BEGIN TRANSACTION;
CREATE TABLE trial_claims (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	pid BIGINT NOT NULL, 
	started BIGINT NOT NULL, 
	seconds BIGINT NOT NULL, 
	token TEXT NOT NULL, 
	configs TEXT NOT NULL, 
	host TEXT NOT NULL, 
	space TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
CREATE TABLE trial_owners (
	id INTEGER NOT NULL, 
	pid BIGINT NOT NULL, 
	started BIGINT NOT NULL, 
	beats BIGINT NOT NULL, 
	folder TEXT NOT NULL, 
	token TEXT NOT NULL, 
	host TEXT NOT NULL, 
	space TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE trial_rounds (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	round BIGINT NOT NULL, 
	trials BIGINT NOT NULL, 
	lowered BIGINT NOT NULL, 
	failed TEXT NOT NULL, 
	errors TEXT NOT NULL, 
	rejected TEXT, 
	compiled TEXT DEFAULT '[]' NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
INSERT INTO "trial_rounds" VALUES(1,1,0,4,4,'[[4,3,2,1],[3,4,0,0]]','{}',NULL,'[[0,4,1,1],[2,2,0,1]]');
INSERT INTO "trial_rounds" VALUES(2,1,1,4,5,'[[1,4,2,1],[2,4,2,0]]','{"P_rmse":0.4895,"A_rmse":0.3983,"V_brier":0.08225}',NULL,'[[0,4,2,0],[0,2,2,1],[3,0,2,0]]');
INSERT INTO "trial_rounds" VALUES(3,1,2,3,7,'[[3,2,2,0],[4,2,2,1],[4,2,2,0],[3,3,2,0],[2,2,2,1],[4,4,2,0],[1,4,2,0]]','{"P_rmse":0.1627,"A_rmse":0.1211,"V_brier":0.001226}',NULL,'[]');
INSERT INTO "trial_rounds" VALUES(4,1,3,2,6,'[[2,3,2,0],[2,3,2,1],[4,4,2,1],[4,3,2,0],[4,4,1,0]]','{"P_rmse":0.1632,"A_rmse":0.1097,"V_brier":7.7e-05}',NULL,'[[4,0,2,0]]');
INSERT INTO "trial_rounds" VALUES(5,1,4,3,3,'[[3,4,2,0],[3,4,2,1],[4,4,1,1]]','{}',NULL,'[]');
CREATE TABLE trial_runs (
	id INTEGER NOT NULL, 
	folder TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	target TEXT NOT NULL, 
	run TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "trial_runs" VALUES(1,'','a583fe1c5273','toy-mixed-dfa2aff1','526f552ef9cd');
CREATE TABLE trial_store (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "trial_store" VALUES(1,'version','2');
CREATE TABLE trial_validations (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	block BIGINT NOT NULL, 
	choice TEXT NOT NULL, 
	measured TEXT NOT NULL, 
	rejected TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	round BIGINT NOT NULL, 
	slot BIGINT NOT NULL, 
	cycles BIGINT NOT NULL, 
	config TEXT NOT NULL, 
	knobs TEXT NOT NULL, 
	status TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	repeats TEXT NOT NULL, 
	seconds DOUBLE, 
	rejected TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES trial_runs (id)
);
INSERT INTO "trials" VALUES(1,1,0,0,-1,'[0,0,0,0]','{"tile_h":1,"tile_w":1,"tile_co":1,"nthread":1}','run_error','run: nothing came back','[]',NULL,NULL);
INSERT INTO "trials" VALUES(2,1,0,1,8250,'[1,2,2,0]','{"tile_h":2,"tile_w":4,"tile_co":4,"nthread":1}','valid','','[]',8.25e-05,NULL);
INSERT INTO "trials" VALUES(3,1,0,2,11250,'[2,0,2,1]','{"tile_h":4,"tile_w":1,"tile_co":4,"nthread":2}','valid','','[]',0.0001125,NULL);
INSERT INTO "trials" VALUES(4,1,0,3,30500,'[4,0,0,0]','{"tile_h":16,"tile_w":1,"tile_co":1,"nthread":1}','valid','','[]',0.000305,NULL);
INSERT INTO "trials" VALUES(5,1,1,0,6625,'[1,3,2,0]','{"tile_h":2,"tile_w":8,"tile_co":4,"nthread":1}','valid','','[]',6.625e-05,NULL);
INSERT INTO "trials" VALUES(6,1,1,1,9750,'[0,3,2,0]','{"tile_h":1,"tile_w":8,"tile_co":4,"nthread":1}','valid','','[]',9.75e-05,NULL);
INSERT INTO "trials" VALUES(7,1,1,2,18000,'[1,0,2,0]','{"tile_h":2,"tile_w":1,"tile_co":4,"nthread":1}','valid','','[]',0.00018,NULL);
INSERT INTO "trials" VALUES(8,1,1,3,15125,'[0,4,1,1]','{"tile_h":1,"tile_w":16,"tile_co":2,"nthread":2}','valid','','[]',0.00015125,NULL);
INSERT INTO "trials" VALUES(9,1,2,0,16625,'[2,3,0,1]','{"tile_h":4,"tile_w":8,"tile_co":1,"nthread":2}','valid','','[]',0.00016625,NULL);
INSERT INTO "trials" VALUES(10,1,2,1,8375,'[0,4,2,0]','{"tile_h":1,"tile_w":16,"tile_co":4,"nthread":1}','valid','','[]',8.375e-05,NULL);
INSERT INTO "trials" VALUES(11,1,2,2,20250,'[2,2,0,1]','{"tile_h":4,"tile_w":4,"tile_co":1,"nthread":2}','valid','','[]',0.0002025,NULL);
INSERT INTO "trials" VALUES(12,1,3,0,6125,'[2,2,2,0]','{"tile_h":4,"tile_w":4,"tile_co":4,"nthread":1}','valid','','[]',6.125e-05,NULL);
INSERT INTO "trials" VALUES(13,1,3,1,15500,'[2,1,1,0]','{"tile_h":4,"tile_w":2,"tile_co":2,"nthread":1}','valid','','[]',0.000155,NULL);
INSERT INTO "trials" VALUES(14,1,4,0,20250,'[4,1,0,0]','{"tile_h":16,"tile_w":2,"tile_co":1,"nthread":1}','valid','','[]',0.0002025,NULL);
INSERT INTO "trials" VALUES(15,1,4,1,-1,'[4,1,2,1]','{"tile_h":16,"tile_w":2,"tile_co":4,"nthread":2}','compile_error','run: nothing came back','[]',NULL,NULL);
INSERT INTO "trials" VALUES(16,1,4,2,-1,'[4,1,2,0]','{"tile_h":16,"tile_w":2,"tile_co":4,"nthread":1}','compile_error','run: nothing came back','[]',NULL,NULL);
CREATE UNIQUE INDEX trial_store_place ON trial_store (name);
CREATE UNIQUE INDEX trial_runs_place ON trial_runs (folder, workload, target, run);
CREATE UNIQUE INDEX trial_owners_place ON trial_owners (folder);
CREATE INDEX ix_trials_run_id ON trials (run_id);
CREATE UNIQUE INDEX trials_place ON trials (run_id, round, slot) WHERE rejected IS NULL;
CREATE UNIQUE INDEX trial_rounds_place ON trial_rounds (run_id, round) WHERE rejected IS NULL;
CREATE INDEX ix_trial_rounds_run_id ON trial_rounds (run_id);
CREATE INDEX ix_trial_validations_run_id ON trial_validations (run_id);
CREATE INDEX ix_trial_claims_run_id ON trial_claims (run_id);
COMMIT;
